/* Matchers: where one text stands, token by token, and what can follow. */
#include "grammar/automaton.h"

#include "base/alloc.h"

#include <string.h>

enum { ENDED = 0 /* the configuration of a text that has ended */ };

/* Of a text with names that must differ: its bytes so far, and where the name begins that it is in, or 0. */
typedef struct text_mark {
    int32_t bytes, begin;
} text_mark;

struct sl_matcher {
    sl_grammar *grammar;
    sl_stacks stacks;
    sl_masker masker;
    int32_t *history; /* [count + 1]: the configuration before and behind each token */
    int32_t count, capacity;
    sl_names names;   /* where the grammar has names that must differ, and */
    text_mark *marks; /* as many as in `history` */
};

static int32_t standing(const sl_matcher *matcher) {
    return matcher->history[matcher->count];
}

static text_mark marked(const sl_matcher *matcher) {
    return matcher->marks ? matcher->marks[matcher->count] : (text_mark){0};
}

static int append(sl_matcher *matcher, int32_t configuration, text_mark mark, sl_error *error) {
    if (matcher->count + 2 > matcher->capacity) {
        const size_t capacity = ((size_t)matcher->capacity + 64) * 2;
        int32_t *grown = sl_realloc(matcher->history, capacity * sizeof(*matcher->history));
        if (grown) {
            matcher->history = grown;
        }
        if (grown && sl_has_names(matcher->grammar)) {
            text_mark *marks = sl_realloc(matcher->marks, capacity * sizeof(*marks));
            matcher->marks = marks ? marks : matcher->marks;
            grown = marks ? grown : NULL;
        }
        if (!grown) {
            return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        }
        matcher->capacity = (int32_t)capacity;
    }
    matcher->history[++matcher->count] = configuration;
    if (matcher->marks) {
        matcher->marks[matcher->count] = mark;
    }
    return 0;
}

sl_matcher *sl_matcher_create(sl_grammar *grammar, sl_error *error) {
    sl_matcher *matcher = sl_alloc_zero(1, sizeof(*matcher));
    if (!matcher) {
        sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    matcher->grammar = sl_grammar_retain(grammar);
    matcher->count = -1;
    int32_t first = SL_NO_WAY;
    if (sl_stacks_begin(&matcher->stacks, grammar, error) == 0) {
        first = sl_stacks_enter(&matcher->stacks, (sl_stack_item){grammar->start, 0}, grammar->may_be_empty,
                                error);
    }
    if (first < 0 || append(matcher, first, (text_mark){0}, error)) {
        sl_matcher_destroy(matcher);
        return NULL;
    }
    return matcher;
}

sl_matcher *sl_matcher_copy(const sl_matcher *matcher, sl_error *error) {
    sl_matcher *copy = sl_alloc_zero(1, sizeof(*copy));
    int32_t *history = sl_alloc((size_t)matcher->capacity * sizeof(*history));
    text_mark *marks = matcher->marks ? sl_alloc((size_t)matcher->capacity * sizeof(*marks)) : NULL;
    if (!copy || !history || (matcher->marks && !marks)) {
        sl_free(copy);
        sl_free(history);
        sl_free(marks);
        sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    memcpy(history, matcher->history, (size_t)(matcher->count + 1) * sizeof(*history));
    if (marks) {
        memcpy(marks, matcher->marks, (size_t)(matcher->count + 1) * sizeof(*marks));
    }
    copy->history = history;
    copy->marks = marks;
    copy->count = matcher->count;
    copy->capacity = matcher->capacity;
    copy->grammar = sl_grammar_retain(matcher->grammar);
    if (sl_stacks_copy(&copy->stacks, &matcher->stacks, error) ||
        sl_names_copy(&copy->names, &matcher->names, marked(matcher).bytes, error)) {
        sl_matcher_destroy(copy);
        return NULL;
    }
    return copy;
}

void sl_matcher_destroy(sl_matcher *matcher) {
    if (matcher) {
        sl_stacks_free(&matcher->stacks);
        sl_masker_free(&matcher->masker);
        sl_names_free(&matcher->names);
        sl_grammar_release(matcher->grammar);
        sl_free(matcher->history);
        sl_free(matcher->marks);
        sl_free(matcher);
    }
}

bool sl_matcher_can_end(const sl_matcher *matcher) {
    return matcher->stacks.configurations[standing(matcher)].ends;
}

bool sl_matcher_has_ended(const sl_matcher *matcher) {
    return standing(matcher) == ENDED;
}

static sl_name_place place_of(int32_t configuration, text_mark mark) {
    return (sl_name_place){.configuration = configuration, .begin = mark.begin, .first = -1};
}

/* The configuration behind the bytes, and the mark; SL_NO_WAY or less: an error, whose code is in `error`. */
static int32_t step_bytes(sl_matcher *matcher, int32_t from, text_mark *mark, const char *bytes, size_t count,
                          sl_error *error) {
    if (sl_has_names(matcher->grammar)) {
        sl_name_place place = place_of(from, *mark);
        int code = 1;
        for (size_t i = 0; i < count && code == 1; i++) {
            code = sl_names_step(&matcher->names, &matcher->stacks, &place, mark->bytes, (uint8_t)bytes[i],
                                 error);
            *mark = (text_mark){mark->bytes + 1, place.begin};
        }
        return code == 1 ? place.configuration : code - 1;
    }
    for (size_t i = 0; i < count && from >= 0; i++) {
        from = sl_stacks_step(&matcher->stacks, from, (uint8_t)bytes[i], error);
    }
    return from;
}

int sl_matcher_accept(sl_matcher *matcher, int32_t token, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = matcher->grammar->vocabulary;
    sl_error local = {0};
    int32_t from = standing(matcher), next = SL_NO_WAY, other;
    text_mark mark = marked(matcher);
    if (token < 0 || token >= vocabulary->count) {
        return sl_fail(error, SL_ERR_INVALID, "grammar: there is no token %d (the vocabulary has %d)", token,
                       vocabulary->count);
    }
    const sl_grammar_token *entry = &vocabulary->tokens[token];
    matcher->stacks.effort = 0;
    if (entry->is_end && matcher->stacks.configurations[from].ends) {
        next = ENDED;
    } else {
        other = sl_stacks_token(&matcher->stacks, from, token, &local);
        if (!entry->is_special && !entry->is_end && entry->count > 0 && other >= SL_NO_WAY) {
            next = step_bytes(matcher, from, &mark, entry->bytes, (size_t)entry->count, &local);
        }
        mark = next >= 0 ? mark : (text_mark){marked(matcher).bytes, 0};
        if (next >= 0 && other >= 0) {
            next = sl_stacks_join(&matcher->stacks, next, other, &local);
        } else if (next >= SL_NO_WAY && other != SL_NO_WAY) {
            next = other;
        }
    }
    if (next < SL_NO_WAY) {
        return sl_fail(error, local.code, "%s", local.message);
    }
    if (next == SL_NO_WAY) {
        return 0;
    }
    int code = append(matcher, next, mark, error);
    return code ? code : 1;
}

int sl_matcher_accept_bytes(sl_matcher *matcher, const char *bytes, size_t count, sl_error *error) {
    sl_error local = {0};
    text_mark mark = marked(matcher);
    matcher->stacks.effort = 0;
    int32_t next = step_bytes(matcher, standing(matcher), &mark, bytes, count, &local);
    if (next < SL_NO_WAY) {
        return sl_fail(error, local.code, "%s", local.message);
    }
    if (next == SL_NO_WAY) {
        return 0;
    }
    matcher->history[matcher->count] = next;
    if (matcher->marks) {
        matcher->marks[matcher->count] = mark;
    }
    return 1;
}

int sl_matcher_rollback(sl_matcher *matcher, int32_t tokens, sl_error *error) {
    if (tokens < 0 || tokens > matcher->count) {
        return sl_fail(error, SL_ERR_INVALID, "grammar: %d tokens are to be undone, %d were accepted", tokens,
                       matcher->count);
    }
    matcher->count -= tokens;
    return 0;
}

/* ---- masks
 * --------------------------------------------------------------------------------------------------- */

static void set_bit(uint32_t *mask, int32_t token) {
    mask[token / 32] |= (uint32_t)1 << (token % 32);
}

/* All tokens but one and those that end a turn. */
static void set_others(const sl_grammar_vocabulary *vocabulary, int32_t token, uint32_t *mask) {
    const uint32_t had = mask[token / 32] >> (token % 32) & 1;
    for (size_t i = 0; i < ((size_t)vocabulary->count + 31) / 32; i++) {
        mask[i] |= vocabulary->not_ends[i];
    }
    if (!had) {
        mask[token / 32] &= ~((uint32_t)1 << (token % 32));
    }
}

/* Tokens that stand for themselves, and those that end the text. */
static void set_tokens(const sl_matcher *matcher, uint32_t *mask) {
    const sl_grammar *grammar = matcher->grammar;
    const sl_configuration *here = &matcher->stacks.configurations[standing(matcher)];
    for (int32_t i = 0; i < here->count; i++) {
        int32_t state = matcher->stacks.items[here->first + i].state;
        int32_t end = grammar->states[state + 1].first_token;
        for (int32_t a = grammar->states[state].first_token; a < end; a++) {
            const sl_token_arc *arc = &grammar->tokens[a];
            if (arc->negated) {
                set_others(grammar->vocabulary, arc->token, mask);
            } else {
                set_bit(mask, arc->token);
            }
        }
    }
    for (int32_t i = 0; here->ends && i < grammar->vocabulary->end_count; i++) {
        set_bit(mask, grammar->vocabulary->ends[i]);
    }
}

int sl_matcher_mask(sl_matcher *matcher, uint32_t *mask, sl_error *error) {
    size_t words = ((size_t)matcher->grammar->vocabulary->count + 31) / 32;
    sl_error local = {0};
    memset(mask, 0, words * sizeof(*mask));
    matcher->stacks.effort = 0;
    if (sl_masker_fill(&matcher->masker, &matcher->stacks, standing(matcher), mask, &local)) {
        return sl_fail(error, local.code, "%s", local.message);
    }
    if (sl_has_names(matcher->grammar)) {
        const text_mark here = marked(matcher);
        const sl_name_place place = place_of(standing(matcher), here);
        if (sl_names_mask(&matcher->names, &matcher->stacks, &place, here.bytes, mask, &local)) {
            return sl_fail(error, local.code, "%s", local.message);
        }
    }
    set_tokens(matcher, mask);
    uint32_t any = standing(matcher) == ENDED;
    for (size_t i = 0; i < words && !any; i++) {
        any |= mask[i];
    }
    return any ? 0
               : sl_fail(error, SL_ERR_INVALID,
                         "grammar: no token of the vocabulary can go on with the text");
}

/* ---- what is forced
 * ------------------------------------------------------------------------------------------ */

/* The byte that alone can follow, or -1. */
static int forced_byte(const sl_matcher *matcher, int32_t configuration) {
    const sl_grammar *grammar = matcher->grammar;
    const sl_configuration *here = &matcher->stacks.configurations[configuration];
    int only = -1;
    if (here->ends) {
        return -1;
    }
    for (int32_t i = 0; i < here->count; i++) {
        const sl_automaton_state *state = &grammar->states[matcher->stacks.items[here->first + i].state];
        if (state->first_token < state[1].first_token) {
            return -1;
        }
        for (int32_t a = state->first_byte; a < state[1].first_byte; a++) {
            const sl_byte_arc *arc = &grammar->bytes[a];
            if (arc->first != arc->last || (only >= 0 && only != arc->first)) {
                return -1;
            }
            only = arc->first;
        }
    }
    return only;
}

int sl_matcher_forced_bytes(sl_matcher *matcher, char *bytes, int32_t most, sl_error *error) {
    int32_t at = standing(matcher), count = 0;
    sl_error local = {0};
    text_mark mark = marked(matcher);
    matcher->stacks.effort = 0;
    for (int byte; count < most && (byte = forced_byte(matcher, at)) >= 0; count++) {
        bytes[count] = (char)byte;
        at = step_bytes(matcher, at, &mark, &bytes[count], 1, &local);
        if (at < 0) {
            return sl_fail(error, local.code, "%s", local.message);
        }
    }
    return count;
}

/* The only bit of a mask, or -1. */
static int32_t only_bit(const uint32_t *mask, size_t words) {
    int32_t only = -1;
    for (size_t i = 0; i < words; i++) {
        if (mask[i]) {
            if (only >= 0 || (mask[i] & (mask[i] - 1))) {
                return -1;
            }
            only = (int32_t)(i * 32) + __builtin_ctz(mask[i]);
        }
    }
    return only;
}

/* A vocabulary spells every byte, so that one token can only be alone where one byte is, or none. Within a
 * name all but one may be taken. */
static bool may_be_forced(const sl_matcher *matcher) {
    const sl_configuration *here = &matcher->stacks.configurations[standing(matcher)];
    if (here->count == 0 || marked(matcher).begin || forced_byte(matcher, standing(matcher)) >= 0) {
        return true;
    }
    for (int32_t i = 0; i < here->count; i++) {
        const sl_automaton_state *state =
            &matcher->grammar->states[matcher->stacks.items[here->first + i].state];
        if (state->first_byte < state[1].first_byte) {
            return false;
        }
    }
    return true;
}

int sl_matcher_forced(sl_matcher *matcher, int32_t *tokens, int32_t most, sl_error *error) {
    size_t words = ((size_t)matcher->grammar->vocabulary->count + 31) / 32;
    int32_t count = 0, code = 1, only;
    uint32_t *mask = sl_alloc((words + 1) * sizeof(*mask));
    if (!mask) {
        return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
    }
    while (count < most && standing(matcher) != ENDED && may_be_forced(matcher)) {
        code = sl_matcher_mask(matcher, mask, error);
        only = code ? -1 : only_bit(mask, words);
        if (only < 0) {
            break;
        }
        code = sl_matcher_accept(matcher, only, error);
        if (code < 0) {
            break;
        }
        tokens[count++] = only;
    }
    matcher->count -= count;
    sl_free(mask);
    return code < 0 ? code : count;
}
