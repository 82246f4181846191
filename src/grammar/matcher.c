/* Matchers: where one text stands, token by token, and what can follow. */
#include "grammar/automaton.h"

#include "base/alloc.h"

#include <string.h>

enum { ENDED = 0 /* the configuration of a text that has ended */ };

struct sl_matcher {
    sl_grammar *grammar;
    sl_stacks stacks;
    sl_masker masker;
    int32_t *history; /* [count + 1]: the configuration before and behind each token */
    int32_t count, capacity;
};

static int32_t standing(const sl_matcher *matcher) {
    return matcher->history[matcher->count];
}

static int append(sl_matcher *matcher, int32_t configuration, sl_error *error) {
    if (matcher->count + 2 > matcher->capacity) {
        int32_t *grown =
            sl_realloc(matcher->history, ((size_t)matcher->capacity + 64) * 2 * sizeof(*matcher->history));
        if (!grown) {
            return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        }
        matcher->history = grown;
        matcher->capacity = (matcher->capacity + 64) * 2;
    }
    matcher->history[++matcher->count] = configuration;
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
    if (first < 0 || append(matcher, first, error)) {
        sl_matcher_destroy(matcher);
        return NULL;
    }
    return matcher;
}

sl_matcher *sl_matcher_copy(const sl_matcher *matcher, sl_error *error) {
    sl_matcher *copy = sl_alloc_zero(1, sizeof(*copy));
    int32_t *history = sl_alloc((size_t)matcher->capacity * sizeof(*history));
    if (!copy || !history) {
        sl_free(copy);
        sl_free(history);
        sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    memcpy(history, matcher->history, (size_t)(matcher->count + 1) * sizeof(*history));
    copy->history = history;
    copy->count = matcher->count;
    copy->capacity = matcher->capacity;
    copy->grammar = sl_grammar_retain(matcher->grammar);
    if (sl_stacks_copy(&copy->stacks, &matcher->stacks, error)) {
        sl_matcher_destroy(copy);
        return NULL;
    }
    return copy;
}

void sl_matcher_destroy(sl_matcher *matcher) {
    if (matcher) {
        sl_stacks_free(&matcher->stacks);
        sl_masker_free(&matcher->masker);
        sl_grammar_release(matcher->grammar);
        sl_free(matcher->history);
        sl_free(matcher);
    }
}

bool sl_matcher_can_end(const sl_matcher *matcher) {
    return matcher->stacks.configurations[standing(matcher)].ends;
}

bool sl_matcher_has_ended(const sl_matcher *matcher) {
    return standing(matcher) == ENDED;
}

/* The configuration behind the bytes; SL_NO_WAY or an error's code. */
static int32_t step_bytes(sl_matcher *matcher, int32_t from, const char *bytes, size_t count,
                          sl_error *error) {
    for (size_t i = 0; i < count && from >= 0; i++) {
        from = sl_stacks_step(&matcher->stacks, from, (uint8_t)bytes[i], error);
    }
    return from;
}

int sl_matcher_accept(sl_matcher *matcher, int32_t token, sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = matcher->grammar->vocabulary;
    sl_error local = {0};
    int32_t from = standing(matcher), next = SL_NO_WAY, other;
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
            next = step_bytes(matcher, from, entry->bytes, (size_t)entry->count, &local);
        }
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
    int code = append(matcher, next, error);
    return code ? code : 1;
}

int sl_matcher_accept_bytes(sl_matcher *matcher, const char *bytes, size_t count, sl_error *error) {
    sl_error local = {0};
    matcher->stacks.effort = 0;
    int32_t next = step_bytes(matcher, standing(matcher), bytes, count, &local);
    if (next < SL_NO_WAY) {
        return sl_fail(error, local.code, "%s", local.message);
    }
    if (next == SL_NO_WAY) {
        return 0;
    }
    matcher->history[matcher->count] = next;
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
    matcher->stacks.effort = 0;
    for (int byte; count < most && (byte = forced_byte(matcher, at)) >= 0; count++) {
        at = sl_stacks_step(&matcher->stacks, at, (uint8_t)byte, &local);
        if (at < 0) {
            return sl_fail(error, local.code, "%s", local.message);
        }
        bytes[count] = (char)byte;
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

/* A vocabulary spells every byte, so that one token can only be alone where one byte is, or none. */
static bool may_be_forced(const sl_matcher *matcher) {
    const sl_configuration *here = &matcher->stacks.configurations[standing(matcher)];
    if (here->count == 0 || forced_byte(matcher, standing(matcher)) >= 0) {
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
