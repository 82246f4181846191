#define _GNU_SOURCE /* memmem */
#include "token/internal.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- NFC
 * -----------------------------------------------------------------------------------------------------------
 * utf8proc decomposes and composes; the canonical ordering between them is done here, because utf8proc's own
 * is quadratic in the length of a run of combining marks, and a text may be nothing but marks. */

typedef struct code_points {
    utf8proc_int32_t *data;
    size_t count, capacity;
} code_points;

static int points_reserve(code_points *points, size_t more) {
    if (points->count + more > points->capacity) {
        size_t capacity = (points->count + more) * 2;
        utf8proc_int32_t *data = sl_realloc(points->data, capacity * sizeof *data);
        if (!data) {
            return SL_ERR_NOMEM;
        }
        points->data = data;
        points->capacity = capacity;
    }
    return 0;
}

/* Sorts a run of marks by combining class, keeping the order of equals: one counting sort over the 256
 * classes. */
static int order_run(utf8proc_int32_t *run, size_t count, code_points *scratch) {
    size_t starts[257] = {0};
    bool ordered = true;
    for (size_t i = 0; i < count; i++) {
        starts[utf8proc_get_property(run[i])->combining_class + 1]++;
        ordered = ordered && (i == 0 || utf8proc_get_property(run[i - 1])->combining_class <=
                                            utf8proc_get_property(run[i])->combining_class);
    }
    if (ordered) {
        return 0;
    }
    scratch->count = 0;
    if (points_reserve(scratch, count)) {
        return SL_ERR_NOMEM;
    }
    for (size_t i = 1; i < 257; i++) {
        starts[i] += starts[i - 1];
    }
    for (size_t i = 0; i < count; i++) {
        scratch->data[starts[utf8proc_get_property(run[i])->combining_class]++] = run[i];
    }
    memcpy(run, scratch->data, count * sizeof *run);
    return 0;
}

/* Characters below U+0300 are their own NFC and compose with nothing before them. */
static int compose_segment(sl_view segment, code_points *points, code_points *scratch, sl_buffer *out) {
    points->count = 0;
    for (size_t at = 0; at < segment.length;) {
        uint32_t c;
        at += sl_utf8_decode(segment.data + at, segment.length - at, &c);
        enum { LONGEST = 32 }; /* a canonical decomposition has at most 4 code points */
        if (points_reserve(points, LONGEST)) {
            return SL_ERR_NOMEM;
        }
        int boundary = 0;
        utf8proc_ssize_t size =
            utf8proc_decompose_char((utf8proc_int32_t)c, points->data + points->count, LONGEST,
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (size < 0 || size > LONGEST) {
            points->data[points->count] = (utf8proc_int32_t)c;
            size = 1;
        }
        points->count += (size_t)size;
    }
    for (size_t from = 0; from < points->count;) {
        size_t to = from;
        while (to < points->count && utf8proc_get_property(points->data[to])->combining_class != 0) {
            to++;
        }
        if (to > from && order_run(points->data + from, to - from, scratch)) {
            return SL_ERR_NOMEM;
        }
        from = to + 1;
    }
    utf8proc_ssize_t count = utf8proc_normalize_utf32(points->data, (utf8proc_ssize_t)points->count,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        sl_buffer_append(out, bytes, sl_utf8_encode((uint32_t)points->data[i], bytes));
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

static int normalize_nfc(sl_view text, sl_buffer *out) {
    code_points points = {0}, scratch = {0};
    int code = 0;
    size_t plain = 0, previous = 0,
           at = 0; /* text[plain, at) is not copied yet; previous: its last character */
    while (at < text.length && code == 0) {
        uint32_t c = 0;
        size_t size = sl_utf8_decode(text.data + at, text.length - at, &c);
        if (size == 0 || c < 0x300) {
            previous = size ? at : at + 1;
            at += size ? size : 1;
            continue;
        }
        size_t end = at;
        while (end < text.length && (size = sl_utf8_decode(text.data + end, text.length - end, &c)) != 0 &&
               c >= 0x300) {
            end += size;
        }
        sl_buffer_append(out, text.data + plain, previous - plain);
        code = compose_segment((sl_view){text.data + previous, end - previous}, &points, &scratch, out);
        plain = previous = at = end;
    }
    sl_buffer_append(out, text.data + plain, text.length - plain);
    sl_free(points.data);
    sl_free(scratch.data);
    return code || out->failed ? SL_ERR_NOMEM : 0;
}

/* ---- steps
 * ---------------------------------------------------------------------------------------------------------
 */

static int replace_all(const sl_text_step *step, sl_view text, sl_buffer *out) {
    size_t at = 0;
    while (at < text.length) {
        const char *found = memmem(text.data + at, text.length - at, step->from.data, step->from.length);
        size_t until = found ? (size_t)(found - text.data) : text.length;
        sl_buffer_append(out, text.data + at, until - at);
        at = until;
        if (found) {
            sl_buffer_append(out, step->to.data, step->to.length);
            at += step->from.length;
        }
        if (out->length / 16 > text.length + 256) {
            return SL_ERR_LIMIT; /* 16 such steps could fill any memory from a few bytes */
        }
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

static int replace_runs(const sl_text_step *step, sl_view text, sl_buffer *out) {
    for (size_t at = 0; at < text.length;) {
        size_t end = at;
        while (text.length - end >= step->from.length &&
               memcmp(text.data + end, step->from.data, step->from.length) == 0) {
            end += step->from.length;
        }
        if (end - at >= 2 * step->from.length) {
            sl_buffer_append(out, step->to.data, step->to.length);
        } else {
            end = at + 1;
            sl_buffer_append(out, text.data + at, 1);
        }
        at = end;
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

static size_t space_at(sl_view text, size_t at, size_t end) {
    uint32_t c;
    const size_t size = sl_utf8_decode(text.data + at, end - at, &c);
    return size && at + size <= end && sl_is_space(c) ? size : 0;
}

/* Without white space at one end. */
static sl_view strip(sl_view text, bool start) {
    for (size_t size; start && text.length > 0 && (size = space_at(text, 0, text.length)) != 0;) {
        text = (sl_view){text.data + size, text.length - size};
    }
    for (bool found = !start; found;) {
        found = false;
        for (size_t size = 1; size <= 3 && size <= text.length && !found; size++) {
            found = space_at(text, text.length - size, text.length) == size;
            text.length -= found ? size : 0;
        }
    }
    return text;
}

static int prepend(const sl_text_step *step, sl_view text, sl_buffer *out) {
    sl_buffer_append(out, step->to.data, step->to.length);
    sl_buffer_append(out, text.data, text.length);
    return out->failed ? SL_ERR_NOMEM : 0;
}

static bool begins(sl_view text, sl_view with) {
    return text.length >= with.length && memcmp(text.data, with.data, with.length) == 0;
}

/* Would the step leave this text as it is? */
static bool is_idle(const sl_text_step *step, sl_view text, bool at_start) {
    switch (step->kind) {
    case SL_STEP_NFC:
        for (size_t i = 0; i < text.length; i++) {
            if ((unsigned char)text.data[i] >= 0xcc) { /* the first byte of U+0300 */
                return false;
            }
        }
        return true;
    case SL_STEP_REPLACE:
        return !memmem(text.data, text.length, step->from.data, step->from.length);
    case SL_STEP_PREPEND_FIRST:
        return !at_start || begins(text, step->from);
    case SL_STEP_PREPEND_MISSING:
        return begins(text, step->from);
    default:
        return false;
    }
}

static int run_step(const sl_text_step *step, sl_view text, sl_buffer *out) {
    switch (step->kind) {
    case SL_STEP_NFC:
        return normalize_nfc(text, out);
    case SL_STEP_WORDS:
    case SL_STEP_WORDS_LOWER:
        return sl_normalize_words(text, step->kind == SL_STEP_WORDS_LOWER, out);
    case SL_STEP_REPLACE:
        return replace_all(step, text, out);
    case SL_STEP_REPLACE_RUNS:
        return replace_runs(step, text, out);
    case SL_STEP_CHARSMAP:
        return sl_charsmap_run(step, text, out);
    case SL_STEP_METASPACE_WORDS:
        return sl_metaspace_words(text, out);
    default:
        return prepend(step, text, out);
    }
}

int sl_text_steps_run(const sl_text_step *steps, size_t count, sl_view text, bool at_start,
                      sl_buffer buffers[2], sl_view *result) {
    int which = 0;
    *result = text;
    for (size_t i = 0; i < count && result->length > 0; i++) {
        if (is_idle(&steps[i], *result, at_start)) {
            continue;
        }
        if (steps[i].kind == SL_STEP_STRIP_START || steps[i].kind == SL_STEP_STRIP_END) {
            *result = strip(*result, steps[i].kind == SL_STEP_STRIP_START);
            continue;
        }
        sl_buffer *out = &buffers[which];
        sl_buffer_clear(out);
        const int code = run_step(&steps[i], *result, out);
        if (code || out->failed) {
            return code ? code : SL_ERR_NOMEM;
        }
        *result = (sl_view){out->data, out->length};
        which = !which;
    }
    return 0;
}
