/* Where a text stands: sets of states, each on stacks that share what lies below (a graph-structured stack).
 * Stacks and sets are numbered by what is in them, so that equal ones are found again and steps are
 * remembered. */
#include "grammar/automaton.h"

#include "base/alloc.h"
#include "base/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_WORK = 4096, /* states with stacks at one place: beyond, a grammar is too ambiguous */
};
#define MOST_BYTES ((uint64_t)512 << 20)
#define MOST_EFFORT ((uint64_t)1 << 28) /* items compared in one call: tenths of a second */

static bool grow(sl_stacks *stacks, void *array, int32_t *capacity, int64_t needed, size_t size) {
    if (needed <= *capacity) {
        return true;
    }
    int64_t wanted = *capacity < 32 ? 32 : (int64_t)*capacity * 2;
    wanted = wanted < needed ? needed : wanted;
    uint64_t more = (uint64_t)(wanted - *capacity) * size;
    if (wanted > INT_MAX / 2 || stacks->bytes_held + more > MOST_BYTES) {
        return false;
    }
    void *old;
    memcpy(&old, array, sizeof(old));
    void *grown = sl_realloc(old, (size_t)wanted * size);
    if (!grown) {
        return false;
    }
    stacks->bytes_held += more;
    memcpy(array, &grown, sizeof(grown));
    *capacity = (int32_t)wanted;
    return true;
}

static int fail(const sl_stacks *stacks, sl_error *error) {
    if (stacks->work_count >= MOST_WORK || stacks->effort > MOST_EFFORT) {
        return sl_fail(error, SL_ERR_LIMIT, "grammar: the text can be read in too many ways");
    }
    if (stacks->bytes_held > MOST_BYTES / 2) {
        return sl_fail(error, SL_ERR_LIMIT, "grammar: the text takes too much memory to follow");
    }
    return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
}

/* A table of numbers + 1 by hash, a power of two; grown before it is half full. `hash_of` gives a number's.
 */
typedef uint64_t hash_function(const sl_stacks *stacks, int32_t number);

static bool grow_table(sl_stacks *stacks, int32_t **table, int32_t *capacity, int32_t count,
                       hash_function *hash_of) {
    if ((count + 1) * 2 <= *capacity) {
        return true;
    }
    if (!grow(stacks, table, capacity, *capacity ? (int64_t)*capacity * 2 : 64, sizeof(int32_t))) {
        return false;
    }
    memset(*table, 0, (size_t)*capacity * sizeof(int32_t));
    uint64_t last = (uint64_t)(*capacity - 1);
    for (int32_t i = 0; i < count; i++) {
        uint64_t at = hash_of(stacks, i);
        while ((*table)[at & last]) {
            at++;
        }
        (*table)[at & last] = i + 1;
    }
    return true;
}

static uint64_t hash_contents(const sl_stacks *stacks, const sl_stack_node *node) {
    if (node->target < 0) {
        return sl_hash64(stacks->members + node->below, (size_t)node->count * sizeof(int32_t), 1);
    }
    return sl_hash64(node, sizeof(*node), 0);
}

static uint64_t hash_node(const sl_stacks *stacks, int32_t number) {
    return hash_contents(stacks, &stacks->nodes[number]);
}

static bool equal_nodes(const sl_stacks *stacks, const sl_stack_node *a, const sl_stack_node *b) {
    if (a->target < 0 && b->target < 0) {
        return a->count == b->count && memcmp(stacks->members + a->below, stacks->members + b->below,
                                              (size_t)a->count * sizeof(int32_t)) == 0;
    }
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* The node's number, or -1 without memory. A union's members stand behind all others. */
static int32_t find_node(sl_stacks *stacks, sl_stack_node node) {
    if (!grow_table(stacks, &stacks->node_table, &stacks->node_table_capacity, stacks->node_count,
                    hash_node)) {
        return -1;
    }
    uint64_t last = (uint64_t)(stacks->node_table_capacity - 1), at = hash_contents(stacks, &node);
    for (; stacks->node_table[at & last]; at++) {
        int32_t number = stacks->node_table[at & last] - 1;
        if (equal_nodes(stacks, &stacks->nodes[number], &node)) {
            return number;
        }
    }
    if (!grow(stacks, &stacks->nodes, &stacks->node_capacity, (int64_t)stacks->node_count + 1,
              sizeof(*stacks->nodes))) {
        return -1;
    }
    if (node.target < 0) {
        stacks->member_count = node.below + node.count;
    }
    stacks->nodes[stacks->node_count] = node;
    stacks->node_table[at & last] = ++stacks->node_count;
    return stacks->node_count - 1;
}

static bool is_union(const sl_stacks *stacks, int32_t stack) {
    return stack > 0 && stacks->nodes[stack].target < 0;
}

static int compare_numbers(const void *a, const void *b) {
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return left < right ? -1 : left > right;
}

/* Both stacks as one. */
static int32_t join(sl_stacks *stacks, int32_t a, int32_t b) {
    if (a == b) {
        return a;
    }
    int32_t both[2] = {a, b}, first = stacks->member_count, count = 0;
    for (int i = 0; i < 2; i++) {
        bool many = is_union(stacks, both[i]);
        int32_t more = many ? stacks->nodes[both[i]].count : 1;
        if (!grow(stacks, &stacks->members, &stacks->member_capacity, (int64_t)first + count + more,
                  sizeof(int32_t))) {
            return -1;
        }
        const int32_t *from = many ? stacks->members + stacks->nodes[both[i]].below : &both[i];
        memcpy(stacks->members + first + count, from, (size_t)more * sizeof(int32_t));
        count += more;
    }
    int32_t *members = stacks->members + first, kept = 1;
    qsort(members, (size_t)count, sizeof(int32_t), compare_numbers);
    for (int32_t i = 1; i < count; i++) {
        if (members[i] != members[kept - 1]) {
            members[kept++] = members[i];
        }
    }
    return find_node(stacks, (sl_stack_node){.target = -1, .callee = -1, .count = kept, .below = first});
}

/* ---- settling a byte
 * ----------------------------------------------------------------------------------------- */

static bool add_one(sl_stacks *stacks, int32_t state, int32_t stack) {
    stacks->effort += (uint64_t)stacks->work_count;
    for (int32_t i = 0; i < stacks->work_count; i++) {
        if (stacks->work[i].state == state && stacks->work[i].stack == stack) {
            return true;
        }
    }
    if (stacks->work_count >= MOST_WORK || stacks->effort > MOST_EFFORT ||
        !grow(stacks, &stacks->work, &stacks->work_capacity, (int64_t)stacks->work_count + 1,
              sizeof(*stacks->work))) {
        return false;
    }
    stacks->work[stacks->work_count++] = (sl_stack_item){state, stack};
    return true;
}

static bool add_work(sl_stacks *stacks, int32_t state, int32_t stack) {
    if (stack < 0) {
        return false;
    }
    if (!is_union(stacks, stack)) {
        return add_one(stacks, state, stack);
    }
    for (int32_t i = 0; i < stacks->nodes[stack].count; i++) {
        if (!add_one(stacks, state, stacks->members[stacks->nodes[stack].below + i])) {
            return false;
        }
    }
    return true;
}

/* A rule ended on this frame. */
static bool pop_frame(sl_stacks *stacks, int32_t stack) {
    sl_stack_node frame = stacks->nodes[stack];
    if (frame.callee < 0) {
        return add_work(stacks, frame.target, frame.below);
    }
    if (frame.count >= frame.least && !add_work(stacks, frame.target, frame.below)) {
        return false;
    }
    if (frame.most >= 0 && frame.count >= frame.most) {
        return true;
    }
    int32_t callee = frame.callee;
    bool counts = frame.most >= 0 || frame.count < frame.least;
    frame.count += counts;
    return add_work(stacks, callee, counts ? find_node(stacks, frame) : stack);
}

static int compare_items(const void *a, const void *b) {
    const sl_stack_item *left = a, *right = b;
    if (left->state != right->state) {
        return left->state < right->state ? -1 : 1;
    }
    return left->stack < right->stack ? -1 : left->stack > right->stack;
}

/* One item for each state of the work. */
static bool join_work(sl_stacks *stacks) {
    if (stacks->work_count < 2) {
        return true;
    }
    qsort(stacks->work, (size_t)stacks->work_count, sizeof(*stacks->work), compare_items);
    int32_t kept = 0;
    for (int32_t i = 1; i < stacks->work_count; i++) {
        if (stacks->work[i].state != stacks->work[kept].state) {
            stacks->work[++kept] = stacks->work[i];
            continue;
        }
        int32_t stack = join(stacks, stacks->work[kept].stack, stacks->work[i].stack);
        if (stack < 0) {
            return false;
        }
        stacks->work[kept].stack = stack;
    }
    stacks->work_count = kept + 1;
    return true;
}

static bool has_calls(const sl_grammar *grammar, int32_t state) {
    return grammar->states[state].first_call < grammar->states[state + 1].first_call;
}

static bool has_arcs(const sl_grammar *grammar, int32_t state) {
    const sl_automaton_state *here = &grammar->states[state];
    return here->first_byte < here[1].first_byte || here->first_token < here[1].first_token;
}

static bool add_joined(sl_stacks *stacks, int32_t state, int32_t stack) {
    if (stack < 0) {
        return false;
    }
    for (int32_t i = 0; i < stacks->work_count; i++) {
        if (stacks->work[i].state == state) {
            stacks->work[i].stack = stack = join(stacks, stacks->work[i].stack, stack);
            return stack >= 0;
        }
    }
    if (stacks->work_count >= MOST_WORK || stacks->effort > MOST_EFFORT ||
        !grow(stacks, &stacks->work, &stacks->work_capacity, (int64_t)stacks->work_count + 1,
              sizeof(*stacks->work))) {
        return false;
    }
    stacks->work[stacks->work_count++] = (sl_stack_item){state, stack};
    return true;
}

static bool call_from(sl_stacks *stacks, sl_stack_item item) {
    const sl_grammar *grammar = stacks->grammar;
    for (int32_t i = grammar->states[item.state].first_call; i < grammar->states[item.state + 1].first_call;
         i++) {
        const sl_call_arc *call = &grammar->calls[i];
        bool counted = call->most != 1;
        int32_t stack = item.stack;
        /* What only ends behind the call needs no frame. */
        if (counted || !grammar->states[call->target].accepts || has_arcs(grammar, call->target) ||
            has_calls(grammar, call->target)) {
            stack = find_node(stacks, (sl_stack_node){.target = call->target,
                                                      .callee = counted ? call->callee : -1,
                                                      .least = counted ? call->least : 0,
                                                      .most = counted ? call->most : 0,
                                                      .count = counted,
                                                      .below = item.stack});
        }
        if (!add_joined(stacks, call->callee, stack)) {
            return false;
        }
    }
    return true;
}

/* Calls, those of rules' beginnings behind all that lead to them: when an item calls, its stack is complete.
 */
static bool call_all(sl_stacks *stacks) {
    const sl_grammar *grammar = stacks->grammar;
    for (int32_t rank = 0; rank < INT_MAX;) {
        int32_t next = INT_MAX;
        for (int32_t i = 0; i < stacks->work_count; i++) {
            sl_stack_item item = stacks->work[i];
            int32_t own = grammar->states[item.state].rank;
            if (own == rank && has_calls(grammar, item.state) && !call_from(stacks, item)) {
                return false;
            }
        }
        for (int32_t i = 0; i < stacks->work_count; i++) {
            int32_t own = grammar->states[stacks->work[i].state].rank;
            if (own > rank && own < next && has_calls(grammar, stacks->work[i].state)) {
                next = own;
            }
        }
        rank = next;
    }
    return true;
}

static uint64_t hash_configuration(const sl_stacks *stacks, int32_t number) {
    const sl_configuration *configuration = &stacks->configurations[number];
    return sl_hash64(stacks->items + configuration->first,
                     (size_t)configuration->count * sizeof(*stacks->items), configuration->ends);
}

/* The configuration of the work; its items stand behind all others. -1 without memory. */
static int32_t find_configuration(sl_stacks *stacks, bool ends) {
    int32_t first = stacks->item_count, count = 0;
    if (!grow_table(stacks, &stacks->configuration_table, &stacks->configuration_table_capacity,
                    stacks->configuration_count, hash_configuration) ||
        !grow(stacks, &stacks->items, &stacks->item_capacity, (int64_t)first + stacks->work_count + 1,
              sizeof(*stacks->items)) ||
        !grow(stacks, &stacks->configurations, &stacks->configuration_capacity,
              (int64_t)stacks->configuration_count + 1, sizeof(*stacks->configurations))) {
        return -1;
    }
    sl_stack_item *items = stacks->items + first;
    for (int32_t i = 0; i < stacks->work_count; i++) {
        if (has_arcs(stacks->grammar, stacks->work[i].state)) {
            items[count++] = stacks->work[i];
        }
    }
    if (count > 1) {
        qsort(items, (size_t)count, sizeof(*items), compare_items);
    }
    uint64_t last = (uint64_t)(stacks->configuration_table_capacity - 1);
    uint64_t at = sl_hash64(items, (size_t)count * sizeof(*items), ends);
    for (; stacks->configuration_table[at & last]; at++) {
        int32_t number = stacks->configuration_table[at & last] - 1;
        const sl_configuration *other = &stacks->configurations[number];
        if (other->count == count && other->ends == ends &&
            memcmp(stacks->items + other->first, items, (size_t)count * sizeof(*items)) == 0) {
            return number;
        }
    }
    stacks->item_count += count;
    stacks->configurations[stacks->configuration_count] =
        (sl_configuration){.first = first, .count = count, .ends = ends, .row = -1};
    stacks->configuration_table[at & last] = ++stacks->configuration_count;
    return stacks->configuration_count - 1;
}

/* Returns from what ended, joins, calls. */
static int32_t settle(sl_stacks *stacks, bool ends, sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    bool fine = true;
    for (int32_t i = 0; fine && i < stacks->work_count; i++) {
        sl_stack_item item = stacks->work[i];
        if (grammar->states[item.state].accepts) {
            ends |= item.stack == 0;
            fine = item.stack == 0 || pop_frame(stacks, item.stack);
        }
    }
    fine = fine && join_work(stacks) && call_all(stacks);
    int32_t found = fine ? find_configuration(stacks, ends) : -1;
    return found < 0 ? fail(stacks, error) : found;
}

/* Errors below SL_NO_WAY. */
static int32_t result(int32_t code) {
    return code < 0 ? code - 1 : code;
}

int32_t sl_stacks_enter(sl_stacks *stacks, sl_stack_item item, bool ends, sl_error *error) {
    stacks->work_count = 0;
    return add_work(stacks, item.state, item.stack) ? result(settle(stacks, ends, error))
                                                    : result(fail(stacks, error));
}

int32_t sl_stacks_place(sl_stacks *stacks, sl_stack_item item, sl_error *error) {
    stacks->work_count = 0;
    int32_t found = add_one(stacks, item.state, item.stack) ? find_configuration(stacks, false) : -1;
    return found < 0 ? result(fail(stacks, error)) : found;
}

int32_t sl_stacks_return(sl_stacks *stacks, const sl_stack_node *frame, sl_error *error) {
    sl_stack_node node = *frame;
    node.below = 0;
    int32_t stack = find_node(stacks, node);
    stacks->work_count = 0;
    return stack >= 0 && pop_frame(stacks, stack) ? result(settle(stacks, false, error))
                                                  : result(fail(stacks, error));
}

/* ---- runs of characters
 * --------------------------------------------------------------------------------------- */

/* Do all bytes from `low` to `high` and what else the character needs lead to `behind`? 1, 0, or a negative
 * code. */
static int ends_characters(sl_stacks *stacks, int32_t from, const int range[2], int more, int32_t behind,
                           sl_error *error) {
    static const int REST[2] = {0x80, 0xbf};
    int32_t known = SL_NO_WAY;
    for (int byte = range[0]; byte <= range[1]; byte++) {
        int32_t next = from < 0 ? from : sl_stacks_step(stacks, from, (uint8_t)byte, error);
        if (next < 0) {
            return next < SL_NO_WAY ? next : 0;
        }
        if (more == 0 ? next != behind : next != known) {
            int code = more == 0 ? 0 : ends_characters(stacks, next, REST, more - 1, behind, error);
            if (code != 1) {
                return code;
            }
            known = next;
        }
    }
    return 1;
}

/* Do all characters beyond ASCII lead to `behind`? */
static int wide_lead(sl_stacks *stacks, int32_t from, int32_t behind, sl_error *error) {
    /* RFC 3629, 4: the first byte's range, the second's, how many follow it. */
    static const int ROWS[][5] = {
        {0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1}, {0xe1, 0xec, 0x80, 0xbf, 1},
        {0xed, 0xed, 0x80, 0x9f, 1}, {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
        {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(*ROWS); i++) {
        int32_t known = SL_NO_WAY;
        for (int byte = ROWS[i][0]; byte <= ROWS[i][1]; byte++) {
            int32_t next = sl_stacks_step(stacks, from, (uint8_t)byte, error);
            if (next < 0) {
                return next < SL_NO_WAY ? next : 0;
            }
            int code =
                next == known ? 1 : ends_characters(stacks, next, &ROWS[i][2], ROWS[i][4], behind, error);
            if (code != 1) {
                return code;
            }
            known = next;
        }
    }
    return 1;
}

/* Which kinds below 0x80 lead to one place, that of the first of some usual characters. */
static int find_run(sl_stacks *stacks, int32_t configuration, sl_error *error) {
    static const char USUAL[] = "e1 E-";
    int32_t behind = SL_NO_WAY;
    uint64_t leaves = 0, seen = 0;
    for (const char *c = USUAL; *c && behind == SL_NO_WAY; c++) {
        behind = sl_stacks_step(stacks, configuration, (uint8_t)*c, error);
    }
    if (behind < SL_NO_WAY) {
        return behind;
    }
    for (int byte = 0; byte < 0x80 && behind >= 0; byte++) {
        const uint64_t kind = (uint64_t)1 << sl_byte_kind((uint8_t)byte);
        seen |= kind;
        if (!(leaves & kind)) {
            int32_t next = sl_stacks_step(stacks, configuration, (uint8_t)byte, error);
            if (next < SL_NO_WAY) {
                return next;
            }
            leaves |= next == behind ? 0 : kind;
        }
    }
    sl_configuration *here = &stacks->configurations[configuration];
    here->run_known = true;
    here->behind = behind;
    here->kinds = seen & ~leaves;
    return 0;
}

int sl_stacks_run(sl_stacks *stacks, int32_t configuration, uint64_t kinds, int32_t *behind,
                  sl_error *error) {
    const uint64_t wide = (uint64_t)1 << SL_KIND_WIDE;
    if (kinds >> SL_KIND_BROKEN & 1) {
        return 0;
    }
    if (!stacks->configurations[configuration].run_known && find_run(stacks, configuration, error)) {
        return error->code;
    }
    *behind = stacks->configurations[configuration].behind;
    if (*behind < 0 || (kinds & ~wide & ~stacks->configurations[configuration].kinds)) {
        return 0;
    }
    if ((kinds & wide) && !stacks->configurations[configuration].wide_known) {
        int code = wide_lead(stacks, configuration, *behind, error);
        if (code < 0) {
            return error->code;
        }
        stacks->configurations[configuration].wide_known = true;
        stacks->configurations[configuration].kinds |= code ? wide : 0;
    }
    return !(kinds & ~stacks->configurations[configuration].kinds);
}

/* Where only one state reads, bytes that lead from it to the same one lead to the same place. */
static void fill_row(sl_stacks *stacks, sl_configuration here, int32_t row, uint8_t byte, int32_t next) {
    const sl_grammar *grammar = stacks->grammar;
    const sl_automaton_state *state = &grammar->states[stacks->items[here.first].state];
    int32_t target = -1;
    for (int32_t a = state->first_byte; a < state[1].first_byte; a++) {
        const sl_byte_arc *arc = &grammar->bytes[a];
        target = arc->first <= byte && byte <= arc->last ? arc->target : target;
    }
    for (int32_t a = state->first_byte; state->is_apart && a < state[1].first_byte; a++) {
        const sl_byte_arc *arc = &grammar->bytes[a];
        for (int c = grammar->classes[arc->first]; arc->target == target && c <= grammar->classes[arc->last];
             c++) {
            stacks->next[row + c] = next;
        }
    }
}

int32_t sl_stacks_step(sl_stacks *stacks, int32_t configuration, uint8_t byte, sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    int32_t row = stacks->configurations[configuration].row;
    int32_t class = grammar->classes[byte];
    if (row >= 0 && stacks->next[row + class] != SL_NOT_KNOWN) {
        return stacks->next[row + class];
    }
    if (row < 0) {
        row = stacks->next_count;
        if (!grow(stacks, &stacks->next, &stacks->next_capacity, (int64_t)row + grammar->class_count,
                  sizeof(int32_t))) {
            return result(fail(stacks, error));
        }
        for (int32_t i = 0; i < grammar->class_count; i++) {
            stacks->next[row + i] = SL_NOT_KNOWN;
        }
        stacks->next_count += grammar->class_count;
        stacks->configurations[configuration].row = row;
    }
    sl_configuration here = stacks->configurations[configuration];
    stacks->work_count = 0;
    for (int32_t i = 0; i < here.count; i++) {
        sl_stack_item item = stacks->items[here.first + i];
        int32_t end = grammar->states[item.state + 1].first_byte;
        for (int32_t a = grammar->states[item.state].first_byte; a < end; a++) {
            const sl_byte_arc *arc = &grammar->bytes[a];
            if (arc->first <= byte && byte <= arc->last && !add_work(stacks, arc->target, item.stack)) {
                return result(fail(stacks, error));
            }
        }
    }
    int32_t next = SL_NO_WAY;
    if (stacks->work_count) {
        next = result(settle(stacks, false, error));
    }
    if (next >= SL_NO_WAY) {
        stacks->next[row + class] = next;
        if (here.count == 1) {
            fill_row(stacks, here, row, byte, next);
        }
    }
    return next;
}

int32_t sl_stacks_token(sl_stacks *stacks, int32_t configuration, int32_t token, sl_error *error) {
    const sl_grammar *grammar = stacks->grammar;
    sl_configuration here = stacks->configurations[configuration];
    bool is_end = grammar->vocabulary->tokens[token].is_end;
    stacks->work_count = 0;
    for (int32_t i = 0; i < here.count; i++) {
        sl_stack_item item = stacks->items[here.first + i];
        int32_t end = grammar->states[item.state + 1].first_token;
        for (int32_t a = grammar->states[item.state].first_token; a < end; a++) {
            const sl_token_arc *arc = &grammar->tokens[a];
            bool fits = arc->negated ? arc->token != token && !is_end : arc->token == token;
            if (fits && !add_work(stacks, arc->target, item.stack)) {
                return result(fail(stacks, error));
            }
        }
    }
    return stacks->work_count ? result(settle(stacks, false, error)) : SL_NO_WAY;
}

int32_t sl_stacks_drop(sl_stacks *stacks, int32_t configuration, int32_t item, sl_error *error) {
    const sl_configuration here = stacks->configurations[configuration];
    stacks->work_count = 0;
    for (int32_t i = 0; i < here.count; i++) {
        const sl_stack_item kept = stacks->items[here.first + i];
        if (i != item && !add_one(stacks, kept.state, kept.stack)) {
            return result(fail(stacks, error));
        }
    }
    if (stacks->work_count == 0 && !here.ends) {
        return SL_NO_WAY;
    }
    const int32_t found = find_configuration(stacks, here.ends);
    return found < 0 ? result(fail(stacks, error)) : found;
}

int32_t sl_stacks_join(sl_stacks *stacks, int32_t a, int32_t b, sl_error *error) {
    int32_t both[2] = {a, b};
    bool fine = true;
    stacks->work_count = 0;
    for (int i = 0; i < 2; i++) {
        sl_configuration one = stacks->configurations[both[i]];
        for (int32_t j = 0; fine && j < one.count; j++) {
            sl_stack_item item = stacks->items[one.first + j];
            fine = add_work(stacks, item.state, item.stack);
        }
    }
    fine = fine && join_work(stacks);
    int32_t found =
        fine ? find_configuration(stacks, stacks->configurations[a].ends || stacks->configurations[b].ends)
             : -1;
    return found < 0 ? result(fail(stacks, error)) : found;
}

int sl_stacks_begin(sl_stacks *stacks, const sl_grammar *grammar, sl_error *error) {
    stacks->grammar = grammar;
    sl_stack_node bottom = {.target = 0, .callee = -1, .below = -1};
    stacks->work_count = 0;
    /* The configuration 0 is that of a text that has ended. */
    if (find_node(stacks, bottom) < 0 || find_configuration(stacks, false) < 0) {
        return fail(stacks, error);
    }
    return 0;
}

void sl_stacks_free(sl_stacks *stacks) {
    sl_free(stacks->nodes);
    sl_free(stacks->members);
    sl_free(stacks->configurations);
    sl_free(stacks->items);
    sl_free(stacks->next);
    sl_free(stacks->node_table);
    sl_free(stacks->configuration_table);
    sl_free(stacks->work);
    memset(stacks, 0, sizeof(*stacks));
}

static bool copy_array(void *to, const void *from, int32_t capacity, size_t size) {
    void *copy = NULL, *source;
    memcpy(&source, from, sizeof(source));
    if (capacity) {
        copy = sl_alloc((size_t)capacity * size);
        if (!copy) {
            memcpy(to, &copy, sizeof(copy));
            return false;
        }
        memcpy(copy, source, (size_t)capacity * size);
    }
    memcpy(to, &copy, sizeof(copy));
    return true;
}

int sl_stacks_copy(sl_stacks *to, const sl_stacks *from, sl_error *error) {
    *to = *from;
    bool fine = copy_array(&to->nodes, &from->nodes, from->node_capacity, sizeof(*from->nodes));
    fine &= copy_array(&to->members, &from->members, from->member_capacity, sizeof(int32_t));
    fine &= copy_array(&to->configurations, &from->configurations, from->configuration_capacity,
                       sizeof(*from->configurations));
    fine &= copy_array(&to->items, &from->items, from->item_capacity, sizeof(*from->items));
    fine &= copy_array(&to->next, &from->next, from->next_capacity, sizeof(int32_t));
    fine &= copy_array(&to->node_table, &from->node_table, from->node_table_capacity, sizeof(int32_t));
    fine &= copy_array(&to->configuration_table, &from->configuration_table,
                       from->configuration_table_capacity, sizeof(int32_t));
    fine &= copy_array(&to->work, &from->work, from->work_capacity, sizeof(*from->work));
    if (!fine) {
        sl_stacks_free(to);
        return sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
    }
    return 0;
}
