#include "sched/adjust.h"

#include "base/alloc.h"

#include <float.h>
#include <math.h>
#include <string.h>

_Static_assert(SL_MOST_BIASED + SL_MOST_ENDS + SL_MOST_PENALISED + SL_MOST_REPEATING <= SL_ADJUSTMENTS,
               "room in a step");

enum { NOBODY = -1 };

/* A token that has a bias, is an end, or is in the window. */
typedef struct entry {
    int32_t token;
    float bias;
    bool biased, end;
    int32_t seen, generated; /* times in the window; of those, sampled by the request */
    int32_t older, newer;    /* of those in the window, by where they came last */
    int32_t next;            /* in the same bucket, or among the free ones */
    uint32_t call;           /* the last one that wrote it */
    int32_t at;              /* in what that call wrote; NOBODY: its logit stays as it is */
} entry;

struct sl_adjust {
    sl_adjust_options options;
    bool reads_tokens, penalises; /* penalises: by the window, not by DRY alone */
    sl_dry *dry;
    int32_t biased, ends;
    entry *entries;    /* [room]; those with a bias and ends first, as they are never freed */
    int32_t used;      /* entries that were ever taken */
    int32_t constants; /* entries with a bias and ends */
    int32_t room;
    int32_t free;     /* entries that were taken and left */
    int32_t *buckets; /* [bucket_mask + 1]: entries by token */
    uint32_t bucket_mask;
    int32_t newest;      /* in the window */
    int32_t first, next; /* the window is tokens[first .. next - 1] */
    bool begun;
    uint32_t calls;
};

bool sl_adjust_reads_tokens(const sl_adjust *adjust) {
    return adjust && adjust->reads_tokens;
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

int sl_adjust_create(const sl_adjust_options *options, sl_adjust **out, sl_error *error) {
    *out = NULL;
    sl_adjust *a = sl_alloc_zero(1, sizeof *a);
    if (!a) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for penalties");
    }
    a->options = *options;
    a->options.dry = NULL;
    a->penalises = options->repetition != 1 || options->presence != 0 || options->frequency != 0;
    a->reads_tokens = a->penalises || options->dry;
    a->free = a->newest = NOBODY;
    a->room = options->constants;
    if (a->penalises) {
        a->room += smaller(options->window, smaller(options->context, options->vocabulary));
    }
    uint32_t buckets = 16;
    while (buckets < (uint32_t)a->room) {
        buckets *= 2;
    }
    a->bucket_mask = buckets - 1;
    a->entries = sl_alloc_zero((size_t)a->room + 1, sizeof *a->entries);
    a->buckets = sl_alloc(buckets * sizeof *a->buckets);
    if (!a->entries || !a->buckets) {
        sl_adjust_destroy(a);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for penalties on %d tokens", options->window);
    }
    memset(a->buckets, 0xff, buckets * sizeof *a->buckets); /* NOBODY */
    const int result = options->dry ? sl_dry_create(options->dry, &a->dry, error) : 0;
    if (result) {
        sl_adjust_destroy(a);
        return result;
    }
    *out = a;
    return 0;
}

void sl_adjust_destroy(sl_adjust *a) {
    if (a) {
        sl_free(a->entries);
        sl_free(a->buckets);
        sl_dry_destroy(a->dry);
        sl_free(a);
    }
}

/* ---- entries by token ---- */

/* Neighbouring ids must not fill neighbouring buckets alone: a multiplicative hash. */
static int32_t *bucket_of(const sl_adjust *a, int32_t token) {
    return &a->buckets[((uint32_t)token * 2654435769u >> 8) & a->bucket_mask];
}

/* NULL: there is none. */
static entry *find(const sl_adjust *a, int32_t token) {
    int32_t i = *bucket_of(a, token);
    while (i != NOBODY && a->entries[i].token != token) {
        i = a->entries[i].next;
    }
    return i == NOBODY ? NULL : &a->entries[i];
}

/* There is room: `constants` and `window` say how many are held at most. */
static entry *find_or_take(sl_adjust *a, int32_t token) {
    entry *e = find(a, token);
    if (e) {
        return e;
    }
    const int32_t i = a->free != NOBODY ? a->free : a->used++;
    e = &a->entries[i];
    if (i == a->free) {
        a->free = e->next;
    }
    int32_t *bucket = bucket_of(a, token);
    *e = (entry){.token = token, .older = NOBODY, .newer = NOBODY, .next = *bucket};
    *bucket = i;
    return e;
}

static void give_back(sl_adjust *a, entry *e) {
    const int32_t i = (int32_t)(e - a->entries);
    int32_t *at = bucket_of(a, e->token);
    while (*at != i) {
        at = &a->entries[*at].next;
    }
    *at = e->next;
    e->next = a->free;
    a->free = i;
}

/* ---- what does not change ---- */

/* NULL with an error that names the option. */
static entry *constant_of(sl_adjust *a, int32_t token, const char *option, sl_error *error) {
    if (token < 0 || token >= a->options.vocabulary) {
        sl_fail(error, SL_ERR_INVALID, "%s: token %d is not in the vocabulary of %d", option, token,
                a->options.vocabulary);
        return NULL;
    }
    entry *e = find_or_take(a, token);
    a->constants = a->used;
    return e;
}

int sl_adjust_bias(sl_adjust *a, int32_t token, float bias, sl_error *error) {
    if (a->biased == SL_MOST_BIASED) {
        return sl_fail(error, SL_ERR_INVALID, "logit_bias: more than %d tokens", SL_MOST_BIASED);
    }
    if (!(bias < INFINITY)) {
        return sl_fail(error, SL_ERR_INVALID, "logit_bias: token %d: %g is neither finite nor -infinity",
                       token, (double)bias);
    }
    entry *e = constant_of(a, token, "logit_bias", error);
    if (!e) {
        return SL_ERR_INVALID;
    }
    if (e->biased) {
        return sl_fail(error, SL_ERR_INVALID, "logit_bias: token %d is there twice", token);
    }
    e->bias = bias;
    e->biased = true;
    a->biased++;
    return 0;
}

int sl_adjust_end(sl_adjust *a, int32_t token, sl_error *error) {
    const entry *known = find(a, token);
    if (known && known->end) {
        return 0;
    }
    if (a->ends == SL_MOST_ENDS) {
        return sl_fail(error, SL_ERR_INVALID,
                       "stop_tokens: with `minimum` more than %d, end-of-text included", SL_MOST_ENDS);
    }
    entry *e = constant_of(a, token, "stop_tokens", error);
    if (!e) {
        return SL_ERR_INVALID;
    }
    a->ends++;
    e->end = true;
    return 0;
}

/* ---- the window ---- */

static void unlink_entry(sl_adjust *a, entry *e) {
    if (e->older != NOBODY) {
        a->entries[e->older].newer = e->newer;
    }
    *(e->newer != NOBODY ? &a->entries[e->newer].older : &a->newest) = e->older;
}

static void enter(sl_adjust *a, int32_t token, bool generated) {
    entry *e = find_or_take(a, token);
    const int32_t i = (int32_t)(e - a->entries);
    if (e->seen > 0) {
        unlink_entry(a, e);
    }
    e->older = a->newest;
    e->newer = NOBODY;
    if (a->newest != NOBODY) {
        a->entries[a->newest].newer = i;
    }
    a->newest = i;
    e->seen++;
    e->generated += generated;
}

static void leave(sl_adjust *a, int32_t token, bool generated) {
    entry *e = find(a, token);
    e->seen--;
    e->generated -= generated;
    if (e->seen == 0) {
        unlink_entry(a, e);
        if (!e->biased && !e->end) {
            give_back(a, e);
        }
    }
}

/* Moves the window's end to `count`. Without a repetition penalty nobody asks for the prompt's tokens. */
static void move_window(sl_adjust *a, const int32_t *tokens, int32_t count) {
    const int32_t window = a->options.window, prompt = a->options.prompt;
    if (!a->begun) {
        const int32_t first = a->options.repetition != 1 ? 0 : prompt;
        const int32_t last = count - smaller(window, count);
        a->first = a->next = first > last ? first : last;
        a->begun = true;
    }
    while (a->next < count) {
        if (a->next - a->first == window) {
            leave(a, tokens[a->first], a->first >= prompt);
            a->first++;
        }
        enter(a, tokens[a->next], a->next >= prompt);
        a->next++;
    }
}

void sl_adjust_rewind(sl_adjust *a, const int32_t *tokens, int32_t count) {
    if (!a) {
        return;
    }
    while (a->begun && a->next > count && a->newest != NOBODY) {
        entry *e = &a->entries[a->newest];
        unlink_entry(a, e);
        e->seen = e->generated = 0;
        if (!e->biased && !e->end) {
            give_back(a, e);
        }
    }
    a->begun = a->begun && a->next <= count;
    if (a->dry) {
        sl_dry_rewind(a->dry, tokens, count);
    }
}

/* ---- writing ---- */

/* What a penalty takes away is finite, however large the caller made it. */
static float penalty_of(const sl_adjust *a, const entry *e) {
    if (e->generated == 0) {
        return 0;
    }
    const float penalty = a->options.presence + a->options.frequency * (float)e->generated;
    return fmaxf(-FLT_MAX, fminf(FLT_MAX, penalty));
}

/* Adds it to to[written]; returns how many there are then. One that changes nothing is left out. */
static int32_t write_entry(sl_adjust *a, entry *e, bool penalised, bool ends_banned, sl_adjustment *to,
                           int32_t written) {
    const float penalty = penalised ? penalty_of(a, e) : 0;
    const sl_adjustment change = {.token = e->token,
                                  .before = e->end && ends_banned ? -INFINITY : e->bias,
                                  .repetition = penalised ? a->options.repetition : 1,
                                  .after = penalty == 0 ? 0 : -penalty};
    const bool changes = change.before != 0 || change.repetition != 1 || change.after != 0;
    e->call = a->calls;
    e->at = changes ? written : NOBODY;
    to[written] = change;
    return written + changes;
}

/* What DRY takes, in addition to what was written. */
static int32_t write_repeating(sl_adjust *a, const int32_t *tokens, int32_t count, sl_adjustment *to,
                               int32_t written) {
    int32_t found;
    const sl_repeating *repeating = sl_dry_find(a->dry, tokens, count, &found);
    for (int32_t i = 0; i < found; i++) {
        const entry *e = find(a, repeating[i].token);
        if (e && e->call == a->calls && e->at != NOBODY) {
            to[e->at].after = fmaxf(-FLT_MAX, to[e->at].after - repeating[i].penalty);
        } else {
            to[written++] =
                (sl_adjustment){.token = repeating[i].token, .repetition = 1, .after = -repeating[i].penalty};
        }
    }
    return written;
}

int32_t sl_adjust_write(sl_adjust *a, const int32_t *tokens, int32_t count, sl_adjustment *to) {
    const bool ends_banned = count - a->options.prompt < a->options.minimum;
    int32_t written = 0;
    a->calls++;
    if (a->penalises) {
        move_window(a, tokens, count);
    }
    int32_t at = a->newest;
    for (int32_t i = 0; i < SL_MOST_PENALISED && at != NOBODY; i++, at = a->entries[at].older) {
        written = write_entry(a, &a->entries[at], true, ends_banned, to, written);
    }
    for (int32_t i = 0; i < a->constants; i++) {
        if (a->entries[i].call != a->calls) {
            written = write_entry(a, &a->entries[i], false, ends_banned, to, written);
        }
    }
    return a->dry ? write_repeating(a, tokens, count, to, written) : written;
}
