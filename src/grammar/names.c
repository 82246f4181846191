/* Names of members that must differ from those before them in their object. No automaton with a stack knows
 * which names an object has, so a matcher looks them up in its text: it reads backwards from the name to the
 * object's brace. Ways that can only lead to a name that is there are left byte by byte, so that what is
 * allowed always leads on. Names are compared by what they stand for: escapes have several spellings. */
#include "grammar/automaton.h"

#include "base/alloc.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENDS = 1,             /* of name_quotes */
    UNKNOWN = -1,         /* place.first: the names were not looked up */
    MOST_TRIED = 1 << 14, /* places looked at for one way: beyond, it counts as leading on */
    ESCAPED_DIGITS = 2,   /* escape: behind \u, and so on up to */
    ESCAPED_END = 6,
};

void sl_names_free(sl_names *names) {
    sl_free(names->text);
    sl_free(names->list);
    sl_free(names->read);
    sl_free(names->tried);
    memset(names, 0, sizeof(*names));
}

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
}

/* Room for `needed` elements of `size` bytes in *array. */
static bool grow(void *array, int32_t *capacity, int32_t needed, size_t size) {
    void *old, *grown;
    if (needed <= *capacity) {
        return true;
    }
    if (needed > INT_MAX / 4) {
        return false;
    }
    const int32_t wanted = needed < 32 ? 64 : needed * 2;
    memcpy(&old, array, sizeof(old));
    grown = sl_realloc(old, (size_t)wanted * size);
    if (!grown) {
        return false;
    }
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
    return true;
}

int sl_names_copy(sl_names *to, const sl_names *from, int32_t bytes, sl_error *error) {
    *to = (sl_names){0};
    if (bytes && !grow(&to->text, &to->text_capacity, bytes, 1)) {
        return no_memory(error);
    }
    if (bytes) {
        memcpy(to->text, from->text, (size_t)bytes);
    }
    return 0;
}

/* ---- what a name stands for
 * ------------------------------------------------------------------------------------ */

/* The byte that the name goes on with behind this byte of its spelling (RFC 8259, 7), or -1 within an escape.
 * Digits only stand for control characters, which is how grammars write them. */
static int read_byte(sl_name_place *place, uint8_t byte) {
    static const char SHORT[][2] = {{'b', '\b'}, {'t', '\t'}, {'n', '\n'}, {'f', '\f'}, {'r', '\r'}};
    if (place->escape == 0) {
        place->escape = byte == '\\';
        place->value = 0;
        return byte == '\\' ? -1 : byte;
    }
    if (place->escape >= ESCAPED_DIGITS) {
        const uint8_t digit = (uint8_t)(byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10);
        place->value = (uint8_t)(place->value * 16 + digit);
        place->escape = (uint8_t)((place->escape + 1) % ESCAPED_END);
        return place->escape ? -1 : place->value;
    }
    place->escape = byte == 'u' ? ESCAPED_DIGITS : 0;
    for (size_t i = 0; i < sizeof(SHORT) / sizeof(*SHORT); i++) {
        if (byte == (uint8_t)SHORT[i][0]) {
            return SHORT[i][1];
        }
    }
    return byte == 'u' ? -1 : byte;
}

static uint8_t byte_of(const sl_names *names, int32_t name, int32_t at) {
    return (uint8_t)names->read[names->list[name].first + at];
}

/* Behind one more byte of the name: fewer names begin like it. */
static void follow(const sl_names *names, sl_name_place *place, uint8_t byte) {
    const int own = read_byte(place, byte);
    if (own < 0) {
        return;
    }
    while (place->first < place->end && (names->list[place->first].count <= place->depth ||
                                         byte_of(names, place->first, place->depth) != own)) {
        place->first++;
    }
    while (place->first < place->end && byte_of(names, place->end - 1, place->depth) != own) {
        place->end--;
    }
    place->depth++;
}

/* ---- the names before one
 * -------------------------------------------------------------------------------------- */

/* Of a quotation mark that ends a string, the one that begins it. */
static int32_t string_begin(const char *text, int32_t end) {
    for (int32_t at = end - 1; at >= 0; at--) {
        int32_t slashes = 0;
        while (text[at] == '"' && at - slashes > 0 && text[at - slashes - 1] == '\\') {
            slashes++;
        }
        if (text[at] == '"' && slashes % 2 == 0) {
            return at;
        }
    }
    return -1;
}

static bool add_name(sl_names *names, int32_t first, int32_t end) {
    sl_name_place reader = {0};
    if (!grow(&names->list, &names->capacity, names->count + 1, sizeof(*names->list)) ||
        !grow(&names->read, &names->read_capacity, names->read_count + end - first, 1)) {
        return false;
    }
    sl_name *name = &names->list[names->count++];
    *name = (sl_name){.first = names->read_count};
    for (int32_t i = first; i < end; i++) {
        const int byte = read_byte(&reader, (uint8_t)names->text[i]);
        if (byte >= 0) {
            names->read[names->read_count++] = (char)byte;
        }
    }
    name->count = names->read_count - name->first;
    return true;
}

/* Names before the quotation mark at text[at], as they come: a member's name is a string before a colon. */
static bool find_names(sl_names *names, int32_t at) {
    const char *text = names->text;
    int32_t depth = 0;
    char behind = '"';
    names->count = names->read_count = 0;
    while (--at >= 0) {
        const char byte = text[at];
        if (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r') {
            continue;
        }
        if (byte == '"') {
            const int32_t begin = string_begin(text, at);
            if (begin < 0 || (depth == 0 && behind == ':' && !add_name(names, begin + 1, at))) {
                return begin < 0;
            }
            at = begin;
        } else if (byte == '}' || byte == ']') {
            depth++;
        } else if ((byte == '{' || byte == '[') && depth-- == 0) {
            break;
        }
        behind = byte;
    }
    return true;
}

static int compare_names(const sl_names *names, const sl_name *a, const sl_name *b) {
    const int32_t common = a->count < b->count ? a->count : b->count;
    const int order = common ? memcmp(names->read + a->first, names->read + b->first, (size_t)common) : 0;
    return order ? order : a->count < b->count ? -1 : a->count > b->count;
}

static void sift(const sl_names *names, int32_t root, int32_t count) {
    for (int32_t child; (child = root * 2 + 1) < count; root = child) {
        if (child + 1 < count && compare_names(names, &names->list[child], &names->list[child + 1]) < 0) {
            child++;
        }
        if (compare_names(names, &names->list[root], &names->list[child]) >= 0) {
            return;
        }
        const sl_name swapped = names->list[root];
        names->list[root] = names->list[child];
        names->list[child] = swapped;
    }
}

/* By a heap: qsort's comparisons do not see what names are in. */
static void sort_names(sl_names *names) {
    for (int32_t root = names->count / 2; root-- > 0;) {
        sift(names, root, names->count);
    }
    for (int32_t last = names->count - 1; last > 0; last--) {
        const sl_name swapped = names->list[0];
        names->list[0] = names->list[last];
        names->list[last] = swapped;
        sift(names, 0, last);
    }
}

/* The list for a place within a name, and which of it begin as the name does so far. */
static bool look_up(sl_names *names, sl_name_place *place, int32_t at) {
    if (names->before != place->begin) {
        names->before = 0;
        if (!find_names(names, place->begin - 1)) {
            return false;
        }
        sort_names(names);
        names->before = place->begin;
    }
    if (place->first == UNKNOWN) {
        place->first = place->depth = place->escape = 0;
        place->end = names->count;
        for (int32_t i = place->begin; i < at; i++) {
            follow(names, place, (uint8_t)names->text[i]);
        }
    }
    return true;
}

/* ---- ways that lead on
 * ----------------------------------------------------------------------------------------- */

static bool is_there(const sl_names *names, const sl_name_place *place) {
    return place->first < place->end && names->list[place->first].count == place->depth;
}

/* Does a byte, or a token, lead from the place to what is no name before? */
static bool leads_out(const sl_names *names, const sl_stacks *stacks, const sl_name_place *place) {
    const sl_grammar *grammar = stacks->grammar;
    const sl_configuration *here = &stacks->configurations[place->configuration];
    for (int32_t i = 0; i < here->count; i++) {
        const int32_t state = stacks->items[here->first + i].state;
        const sl_automaton_state *from = &grammar->states[state];
        if (from->first_token < from[1].first_token) {
            return true;
        }
        for (int32_t a = from->first_byte; a < from[1].first_byte; a++) {
            for (int byte = grammar->bytes[a].first; byte <= grammar->bytes[a].last; byte++) {
                sl_name_place next = *place;
                if (byte == '"' && place->escape == 0) {
                    if (state != grammar->name_quotes[ENDS] || !is_there(names, place)) {
                        return true;
                    }
                    continue;
                }
                follow(names, &next, (uint8_t)byte);
                if (next.first >= next.end) {
                    return true;
                }
            }
        }
    }
    return here->ends;
}

/* Puts the places behind a place on the list of those to be tried. 0 or a negative code. */
static int try_behind(sl_names *names, sl_stacks *stacks, const sl_name_place *place, int32_t *count,
                      sl_error *error) {
    for (int byte = 0; byte < 256; byte++) {
        sl_name_place next = *place;
        /* A slash is followed as itself: escaped it stands for the same. */
        if (place->escape == 0 ? byte == '"' : place->escape == 1 && byte == '/') {
            continue;
        }
        next.configuration = sl_stacks_step(stacks, place->configuration, (uint8_t)byte, error);
        if (next.configuration < 0) {
            if (next.configuration < SL_NO_WAY) {
                return error->code;
            }
            continue;
        }
        follow(names, &next, (uint8_t)byte);
        if (!grow(&names->tried, &names->tried_capacity, *count + 1, sizeof(*names->tried))) {
            return no_memory(error);
        }
        names->tried[(*count)++] = next;
    }
    return 0;
}

/* 1: the place leads to a name that is not there, or out of it; 0: it does not; or a negative code. */
static int leads_on(sl_names *names, sl_stacks *stacks, const sl_name_place *place, sl_error *error) {
    sl_name_place here = *place;
    int32_t count = 0, looked = 0;
    for (;;) {
        if (here.first >= here.end || leads_out(names, stacks, &here) || ++looked > MOST_TRIED) {
            return 1;
        }
        const int code = try_behind(names, stacks, &here, &count, error);
        if (code || count == 0) {
            return code;
        }
        here = names->tried[--count];
    }
}

/* Takes the items away that lead to no new name. 1, 0: none is left; or a negative code. */
static int drop_closed(sl_names *names, sl_stacks *stacks, sl_name_place *place, sl_error *error) {
    for (int32_t i = stacks->configurations[place->configuration].count; i-- > 0;) {
        sl_name_place one = *place;
        const sl_stack_item item = stacks->items[stacks->configurations[place->configuration].first + i];
        one.configuration = sl_stacks_place(stacks, item, error);
        const int code = one.configuration < 0 ? error->code : leads_on(names, stacks, &one, error);
        if (code < 0) {
            return code;
        }
        if (code == 0) {
            const int32_t left = sl_stacks_drop(stacks, place->configuration, i, error);
            place->has_dropped = true;
            if (left < 0) {
                return left == SL_NO_WAY ? 0 : error->code;
            }
            place->configuration = left;
        }
    }
    return 1;
}

/* The item of the state, or -1. */
static int32_t item_of(const sl_stacks *stacks, int32_t configuration, int32_t state) {
    const sl_configuration *here = &stacks->configurations[configuration];
    for (int32_t i = 0; i < here->count; i++) {
        if (stacks->items[here->first + i].state == state) {
            return i;
        }
    }
    return -1;
}

int sl_names_step(sl_names *names, sl_stacks *stacks, sl_name_place *place, int32_t at, uint8_t byte,
                  sl_error *error) {
    const int32_t *quotes = stacks->grammar->name_quotes;
    const bool is_name = place->begin > 0;
    if (!grow(&names->text, &names->text_capacity, at + 1, 1) || (is_name && !look_up(names, place, at))) {
        return no_memory(error);
    }
    names->text[at] = (char)byte;
    const bool begins = byte == '"' && item_of(stacks, place->configuration, quotes[0]) >= 0;
    const bool closes = is_name && !begins && byte == '"' && place->escape == 0;
    const int32_t ending =
        closes && is_there(names, place) ? item_of(stacks, place->configuration, quotes[ENDS]) : -1;
    int32_t next = place->configuration;
    if (ending >= 0) {
        place->has_dropped = true;
        next = sl_stacks_drop(stacks, next, ending, error);
    }
    next = next < 0 ? next : sl_stacks_step(stacks, next, byte, error);
    if (next < 0) {
        return next == SL_NO_WAY ? 0 : error->code;
    }
    place->configuration = next;
    if (begins) {
        place->begin = at + 1;
        place->first = UNKNOWN;
        names->before = 0;
    } else if (closes) {
        place->begin = 0;
    } else if (is_name) {
        follow(names, place, byte);
        return place->first < place->end ? drop_closed(names, stacks, place, error) : 1;
    }
    return 1;
}

/* ---- masks
 * ----------------------------------------------------------------------------------------------------- */

static void take_out(const sl_grammar_vocabulary *vocabulary, int32_t node, uint32_t *mask) {
    const int32_t end = vocabulary->first_token[node + vocabulary->trie[node].size];
    for (int32_t i = vocabulary->first_token[node]; i < end; i++) {
        const int32_t token = vocabulary->in_order[i];
        mask[token / 32] &= ~((uint32_t)1 << (token % 32));
    }
}

int sl_names_mask(sl_names *names, sl_stacks *stacks, const sl_name_place *place, int32_t at, uint32_t *mask,
                  sl_error *error) {
    const sl_grammar_vocabulary *vocabulary = stacks->grammar->vocabulary;
    sl_name_place path[SL_TRIE_DEPTH + 1];
    path[0] = *place;
    path[0].has_dropped = false;
    for (int32_t i = 0; i < vocabulary->trie_count;) {
        const sl_trie_node *node = &vocabulary->trie[i];
        const sl_name_place *from = &path[node->depth - 1];
        sl_name_place *to = &path[node->depth];
        /* Nothing changes where none that is there is followed, and no token has more of a name than its
         * beginning. */
        const bool follows = from->begin && (from->first == UNKNOWN || from->first < from->end);
        if (!from->has_dropped && !follows && !node->quotes) {
            i += node->size;
            continue;
        }
        *to = *from;
        const int code = sl_names_step(names, stacks, to, at + node->depth - 1, node->byte, error);
        if (code < 0) {
            return code;
        }
        if (code == 0 && to->has_dropped) {
            take_out(vocabulary, i, mask);
        }
        i += code ? 1 : node->size;
    }
    return 0;
}
