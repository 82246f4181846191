#include "reasoning.h"

#include <string.h>

void reasoning_begin(reasoning_splitter *s, const char *open, const char *close, bool opened) {
    *s = (reasoning_splitter){.open = open, .close = close};
    s->phase = !open || !close ? REASONING_NONE : opened ? REASONING_INSIDE : REASONING_START;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void drop(text *held, size_t count) {
    memmove(held->data, held->data + count, held->length - count + 1);
    held->length -= count;
}

static size_t leading_blanks(const text *held) {
    size_t count = 0;
    while (count < held->length && is_blank(held->data[count])) {
        count++;
    }
    return count;
}

/* How many bytes at the end may be the beginning of the tag, with white space before it. */
static size_t undecided(const text *held, const char *tag) {
    size_t most = strlen(tag) - 1, tail = most < held->length ? most : held->length;
    while (tail > 0 && memcmp(held->data + held->length - tail, tag, tail) != 0) {
        tail--;
    }
    while (tail < held->length && is_blank(held->data[held->length - tail - 1])) {
        tail++;
    }
    return tail;
}

/* True: look again, the phase has changed. */
static bool step_start(reasoning_splitter *s) {
    const size_t blanks = leading_blanks(&s->held), length = strlen(s->open);
    const size_t there = s->held.length - blanks;
    if (memcmp(s->held.data + blanks, s->open, there < length ? there : length) != 0) {
        s->phase = REASONING_ANSWER;
        return true;
    }
    if (there < length) {
        return false;
    }
    drop(&s->held, blanks + length);
    s->phase = REASONING_INSIDE;
    return true;
}

static bool step_inside(reasoning_splitter *s, text *reasoning) {
    if (reasoning->length == 0) {
        drop(&s->held, leading_blanks(&s->held));
    }
    const char *close = memmem(s->held.data, s->held.length, s->close, strlen(s->close));
    size_t kept = close ? (size_t)(close - s->held.data) : s->held.length - undecided(&s->held, s->close);
    while (close && kept > 0 && is_blank(s->held.data[kept - 1])) {
        kept--;
    }
    text_add(reasoning, s->held.data, kept);
    drop(&s->held, close ? (size_t)(close - s->held.data) + strlen(s->close) : kept);
    s->phase = close ? REASONING_AFTER : REASONING_INSIDE;
    return close != NULL;
}

void reasoning_feed(reasoning_splitter *s, const char *bytes, size_t length, text *reasoning, text *answer) {
    if (s->phase == REASONING_NONE || s->phase == REASONING_ANSWER) {
        text_add(answer, bytes, length);
        return;
    }
    text_add(&s->held, bytes, length);
    bool again = s->held.length > 0 && !s->held.failed;
    answer->failed |= s->held.failed;
    while (again && s->held.length > 0) {
        switch (s->phase) {
        case REASONING_START:
            again = step_start(s);
            break;
        case REASONING_INSIDE:
            again = step_inside(s, reasoning);
            break;
        case REASONING_AFTER:
            drop(&s->held, leading_blanks(&s->held));
            s->phase = s->held.length ? REASONING_ANSWER : REASONING_AFTER;
            break;
        default:
            text_add(answer, s->held.data, s->held.length);
            text_clear(&s->held);
            again = false;
        }
    }
}

void reasoning_finish(reasoning_splitter *s, text *reasoning, text *answer) {
    if (s->held.length > 0) {
        text *to = s->phase == REASONING_INSIDE ? reasoning : answer;
        text_add(to, s->held.data, s->held.length);
        text_clear(&s->held);
    }
}

void reasoning_free(reasoning_splitter *s) {
    text_free(&s->held);
}
