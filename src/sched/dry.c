#define _GNU_SOURCE
#include "sched/dry.h"

#include "base/alloc.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct breaker {
    char *text;
    size_t length;
} breaker;

struct sl_dry {
    sl_dry_options options;
    breaker breakers[SL_MOST_BREAKERS];
    size_t longest;  /* breaker */
    int32_t *since;  /* [context]: tokens up to this one behind the last that ends a breaker; 0: it does */
    int32_t *common; /* [context]: see measure */
    int32_t *listed; /* [vocabulary]: a token's place in `found`, if that place is its */
    sl_repeating found[SL_MOST_REPEATING];
    int32_t lengths[SL_MOST_REPEATING];
    char *tail; /* the text's last bytes, longest - 1 at most, and room for as many behind */
    size_t tail_length;
    int32_t read; /* tokens that `since` is known of */
};

static int copy_breakers(sl_dry *dry, const sl_dry_options *o, sl_error *error) {
    for (size_t i = 0; i < o->breaker_count; i++) {
        const size_t length = o->breakers[i] ? strlen(o->breakers[i]) : 0;
        breaker *b = &dry->breakers[i];
        if (length == 0) {
            return sl_fail(error, SL_ERR_INVALID, "dry_breakers %zu: is empty", i);
        }
        b->text = sl_alloc(length);
        if (!b->text) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for DRY");
        }
        memcpy(b->text, o->breakers[i], length);
        b->length = length;
        dry->longest = length > dry->longest ? length : dry->longest;
    }
    return 0;
}

int sl_dry_create(const sl_dry_options *options, sl_dry **out, sl_error *error) {
    *out = NULL;
    if (options->breaker_count > SL_MOST_BREAKERS) {
        return sl_fail(error, SL_ERR_INVALID, "dry_breakers: %zu are more than %d", options->breaker_count,
                       SL_MOST_BREAKERS);
    }
    sl_dry *dry = sl_alloc_zero(1, sizeof *dry);
    if (!dry) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for DRY");
    }
    dry->options = *options;
    int result = copy_breakers(dry, options, error);
    dry->options.breakers = NULL;
    dry->since = sl_alloc_zero((size_t)options->context + 1, sizeof *dry->since);
    dry->common = sl_alloc_zero((size_t)options->context + 1, sizeof *dry->common);
    dry->listed = sl_alloc_zero((size_t)options->vocabulary, sizeof *dry->listed);
    dry->tail = sl_alloc_zero(2 * dry->longest + 1, 1);
    if (result == 0 && (!dry->since || !dry->common || !dry->listed || !dry->tail)) {
        result = sl_fail(error, SL_ERR_NOMEM, "out of memory for DRY");
    }
    if (result) {
        sl_dry_destroy(dry);
        return result;
    }
    *out = dry;
    return 0;
}

void sl_dry_destroy(sl_dry *dry) {
    if (!dry) {
        return;
    }
    for (size_t i = 0; i < SL_MOST_BREAKERS; i++) {
        sl_free(dry->breakers[i].text);
    }
    sl_free(dry->since);
    sl_free(dry->common);
    sl_free(dry->listed);
    sl_free(dry->tail);
    sl_free(dry);
}

/* ---- where a breaker's text ends ---- */

/* Inside the token, or across its beginning: in the last bytes before it and its own first ones. */
static bool ends_here(sl_dry *dry, const breaker *b, const char *bytes, size_t length) {
    if (memmem(bytes, length, b->text, b->length)) {
        return true;
    }
    const size_t before = dry->tail_length < b->length - 1 ? dry->tail_length : b->length - 1;
    const size_t own = length < b->length - 1 ? length : b->length - 1;
    memcpy(dry->tail + dry->tail_length, bytes, own);
    return memmem(dry->tail + dry->tail_length - before, before + own, b->text, b->length) != NULL;
}

static void move_tail(sl_dry *dry, const char *bytes, size_t length) {
    const size_t most = dry->longest - 1;
    const size_t own = length < most ? length : most;
    const size_t kept = dry->tail_length < most - own ? dry->tail_length : most - own;
    memmove(dry->tail, dry->tail + dry->tail_length - kept, kept);
    memcpy(dry->tail + kept, bytes + length - own, own);
    dry->tail_length = kept + own;
}

static void read_token(sl_dry *dry, int32_t position, int32_t token) {
    size_t length = 0;
    const char *bytes = dry->longest > 0 ? dry->options.bytes(dry->options.owner, token, &length) : NULL;
    bool ends = false;
    for (size_t i = 0; i < dry->options.breaker_count && length > 0 && !ends; i++) {
        ends = ends_here(dry, &dry->breakers[i], bytes, length);
    }
    if (length > 0) {
        move_tail(dry, bytes, length);
    }
    dry->since[position] = ends ? 0 : 1 + (position > 0 ? dry->since[position - 1] : 0);
}

void sl_dry_rewind(sl_dry *dry, const int32_t *tokens, int32_t count) {
    if (dry->read <= count) {
        return;
    }
    /* Far enough back that the tail has all the bytes that it may have. */
    int32_t first = count;
    size_t length = 0, held = 0;
    while (dry->longest > 0 && first > 0 && held + 1 < dry->longest) {
        dry->options.bytes(dry->options.owner, tokens[--first], &length);
        held += length;
    }
    dry->tail_length = 0;
    for (; first < count; first++) {
        const char *bytes = dry->options.bytes(dry->options.owner, tokens[first], &length);
        if (length > 0) {
            move_tail(dry, bytes, length);
        }
    }
    dry->read = count;
}

/* ---- matches ---- */

/* common[k]: how many tokens in front of the last k, the nearest first, are equal to those at the end. It is
 * the Z function of the window read backwards (Gusfield: "Algorithms on Strings, Trees, and Sequences"): a
 * box [left, right) is known to repeat the beginning, so what lies in it need not be compared again. */
static void measure(int32_t *common, const int32_t *tokens, int32_t count, int32_t window) {
    int32_t left = 0, right = 0;
    const int32_t *last = tokens + count - 1;
    for (int32_t k = 1; k < window; k++) {
        int32_t same = k < right ? (common[k - left] < right - k ? common[k - left] : right - k) : 0;
        while (k + same < window && last[-same] == last[-(k + same)]) {
            same++;
        }
        if (k + same > right) {
            left = k;
            right = k + same;
        }
        common[k] = same;
    }
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

const sl_repeating *sl_dry_find(sl_dry *dry, const int32_t *tokens, int32_t count, int32_t *found) {
    const sl_dry_options *o = &dry->options;
    const int32_t window = smaller(o->window, count);
    *found = 0;
    for (; dry->read < count; dry->read++) {
        read_token(dry, dry->read, tokens[dry->read]);
    }
    if (count == 0 || dry->since[count - 1] < o->allowed_length) {
        return dry->found;
    }
    measure(dry->common, tokens, count, window);
    for (int32_t k = 1; k < window; k++) {
        const int32_t end = count - 1 - k, next = tokens[end + 1];
        const int32_t length = smaller(dry->common[k], smaller(dry->since[end], dry->since[count - 1]));
        if (length < o->allowed_length || dry->since[end + 1] == 0) {
            continue;
        }
        int32_t at = dry->listed[next];
        if (at >= *found || dry->found[at].token != next) {
            if (*found == SL_MOST_REPEATING) {
                continue;
            }
            at = dry->listed[next] = (*found)++;
            dry->found[at].token = next;
            dry->lengths[at] = 0;
        }
        dry->lengths[at] = length > dry->lengths[at] ? length : dry->lengths[at];
    }
    for (int32_t i = 0; i < *found; i++) {
        const double longer = dry->lengths[i] - o->allowed_length;
        dry->found[i].penalty = (float)fmin(FLT_MAX, (double)o->multiplier * pow((double)o->base, longer));
    }
    return dry->found;
}
